#!/bin/sh
# A new cluster with one account and its database, then the server. As in the official image, its own socket is trusted.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb -D "$PGDATA" -U "$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth-local=trust --auth-host=scram-sha-256 -E UTF8 --locale=C >/dev/null
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl -D "$PGDATA" -w -o "-c listen_addresses=''" start >/dev/null
    PGPASSWORD=$(cat "$POSTGRES_PASSWORD_FILE") psql -qU "$POSTGRES_USER" -d postgres -c "CREATE DATABASE $POSTGRES_DB"
    pg_ctl -D "$PGDATA" -w stop >/dev/null
fi
exec postgres -D "$PGDATA" -c listen_addresses='*'
