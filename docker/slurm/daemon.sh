#!/bin/sh
# One of Slurm's daemons with what it needs beside it: `slurm-daemon munged | mariadb | slurmdbd | slurmctld | slurmd`.
# All but slurmd run as the account `trainyard`; slurmd is root, because it becomes the account of each job.
set -eu

munge() {
    set -- --key-file=/run/secrets/munge_key --socket=/run/munge/munge.socket.2 --log-file=/run/munge/munged.log \
        --pid-file=/run/munge/munged.pid --seed-file=/run/munge/munged.seed "$@"
    if [ "$(id -u)" = 0 ]; then
        chown trainyard: /run/munge
        set -- setpriv --reuid=trainyard --regid="$(id -g trainyard)" --clear-groups munged "$@"
    else
        set -- munged "$@"
    fi
    "$@"
}

wait_for() {
    until timeout 1 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null; do sleep 1; done
}

case "$1" in
munged)
    exec munged --foreground --force --key-file=/run/secrets/munge_key --socket=/run/munge/munge.socket.2 \
        --pid-file=/run/munge/munged.pid --seed-file=/run/munge/munged.seed --log-file=/run/munge/munged.log
    ;;
mariadb)
    data=/var/lib/mysql
    [ -d "$data/mysql" ] || mariadb-install-db --no-defaults --datadir="$data" --skip-test-db >/dev/null
    umask 077
    cat >/run/slurm/start.sql <<SQL
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS slurm@'%' IDENTIFIED BY '$(cat /run/secrets/mariadb_password)';
GRANT ALL ON slurm_acct_db.* TO slurm@'%';
SQL
    exec mariadbd --no-defaults --datadir="$data" --socket=/run/slurm/socket --bind-address=0.0.0.0 \
        --init-file=/run/slurm/start.sql --innodb-lock-wait-timeout=900 --skip-log-bin
    ;;
slurmdbd)
    munge
    wait_for mariadb 3306
    umask 077
    cat >/run/slurm/slurmdbd.conf <<CONF
AuthType=auth/munge
DbdHost=slurmdbd
SlurmUser=trainyard
PidFile=/run/slurm/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=mariadb
StorageUser=slurm
StoragePass=$(cat /run/secrets/mariadb_password)
StorageLoc=slurm_acct_db
CONF
    exec slurmdbd -D
    ;;
slurmctld)
    munge
    wait_for slurmdbd 6819
    # Known already, or made now; without it slurmctld does not start.
    until sacctmgr --noheader --parsable2 list cluster format=cluster | grep -qx trainyard; do
        sacctmgr --immediate --quiet add cluster trainyard || sleep 1
    done
    exec slurmctld -D
    ;;
slurmd)
    munge
    exec slurmd -D -N "$(hostname)"
    ;;
*)
    exec "$@"
    ;;
esac
