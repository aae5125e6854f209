# Slurm in containers: `controller` (slurmctld, slurmdbd and its MariaDB, munged) and `node` (slurmd, torch, our worker).
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS slurm
ARG TRAINYARD_UID=10001
ARG TRAINYARD_GID=10001
COPY docker/certs/ /usr/local/share/ca-certificates/
# The package makes a key, which must not be one that everybody has.
RUN update-ca-certificates >/dev/null 2>&1 \
    && apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends slurm-client munge >/dev/null \
    && rm -rf /etc/munge/munge.key /var/cache/apt/*.bin /var/cache/apt/archives/*.deb
COPY docker/account.sh /tmp/
RUN sh /tmp/account.sh ${TRAINYARD_UID} ${TRAINYARD_GID}
COPY docker/slurm/slurm.conf /etc/slurm/
COPY docker/slurm/daemon.sh /usr/local/bin/slurm-daemon
RUN chmod 0755 /usr/local/bin/slurm-daemon && ln -s /run/slurm/slurmdbd.conf /etc/slurm/slurmdbd.conf
ENTRYPOINT ["slurm-daemon"]

FROM slurm AS controller
ARG TRAINYARD_UID=10001
ARG TRAINYARD_GID=10001
RUN DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends slurmctld slurmdbd mariadb-server \
        >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/lib/mysql \
    && mkdir -p /var/lib/mysql /var/spool/slurmctld \
    && chown ${TRAINYARD_UID}:${TRAINYARD_GID} /var/lib/mysql /var/spool/slurmctld
USER ${TRAINYARD_UID}:${TRAINYARD_GID}

FROM ${BASE_IMAGE} AS build
ARG PIP_OPTIONS=""
ARG WORKER_EXTRAS="worker,hf,data,examples"
WORKDIR /src
COPY docker/certs/ /usr/local/share/ca-certificates/
COPY docker/wheelhouse/ /wheelhouse/
COPY docker/install.sh pyproject.toml constraints.txt ./
RUN sh install.sh dependencies ${WORKER_EXTRAS}
COPY trainyard trainyard
COPY service service
COPY worker worker
COPY migrations migrations
COPY jobs_templates jobs_templates
RUN sh install.sh package

FROM slurm AS node
RUN DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends slurmd >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb
COPY --from=build /opt/trainyard /opt/trainyard
ENV PATH=/opt/trainyard/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
