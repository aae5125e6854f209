"""Whether the service in this container is ready. Few imports: it runs every ten seconds, in every container."""

import socket
import sys

with socket.create_connection(("127.0.0.1", 8470), timeout=8) as connection:
    connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = b"".join(iter(lambda: connection.recv(65536), b""))
print(answer.decode(errors="replace").partition("\r\n\r\n")[2])
sys.exit(b" 200 " not in answer.partition(b"\r\n")[0])
