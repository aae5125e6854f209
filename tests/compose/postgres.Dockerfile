# Stands for the official Postgres image where none can be pulled: the same variables, folders and account rules.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG TRAINYARD_UID
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends postgresql >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/lib/postgresql/*/main \
    && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ \
    && mkdir -p /var/lib/postgresql/data && chmod 1777 /var/lib/postgresql/data /var/run/postgresql
# initdb wants its account to have a name; the official image has a library that makes one up.
RUN useradd --uid ${TRAINYARD_UID} somebody
COPY postgres.sh /usr/local/bin/docker-entrypoint.sh
ENTRYPOINT ["sh", "/usr/local/bin/docker-entrypoint.sh"]
