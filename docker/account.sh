#!/bin/sh
# The account that everything of ours runs as, jobs included, and the folders that are its own: `account.sh UID GID`.
set -eu
getent group "$2" >/dev/null || groupadd --gid "$2" trainyard
useradd --uid "$1" --gid "$2" --create-home --shell /bin/bash trainyard
for folder in /shared /state /run/munge /var/lib/slurm; do
    mkdir -p "$folder"
    chown "$1:$2" "$folder"
done
chmod 0700 /state
