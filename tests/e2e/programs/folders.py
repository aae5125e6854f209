"""Three customs of output folders, and an end with a text."""

import os
import shutil
import sys

if os.path.exists("outputs"):
    shutil.rmtree("outputs")
os.mkdir("outputs")
number = 1
while os.path.exists(f"runs/exp{number}"):
    number += 1
os.makedirs(f"runs/exp{number}")
for folder in ("outputs", f"runs/exp{number}"):
    with open(f"{folder}/weights.pt", "w") as file:
        file.write("weights")
print("folder", number, repr(sys.stdin.read()))
sys.exit("no more data")
