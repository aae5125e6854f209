"""The data plane: what runs on the nodes. Never imports fastapi, sqlalchemy or the service."""
