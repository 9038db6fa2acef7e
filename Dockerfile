# voxgraft in a container, for NVIDIA cards and for processors:   docker build -t voxgraft .
# Smaller, for processors alone, from an index that has such a torch:
#   docker build -t voxgraft:cpu --build-arg PIP_FLAGS="--extra-index-url ADDRESS" .
# How it is run, and what to mount: docs/hardware.md

FROM python:3.12-slim

# More flags for pip, as in the Makefile.
ARG PIP_FLAGS=""
# Who owns what the container writes into the mounted folder.
ARG USER_ID=1000

WORKDIR /opt/voxgraft
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY voxgraft ./voxgraft
RUN pip install --no-cache-dir ${PIP_FLAGS} -c constraints.txt '.[ui,hub,tensorboard,parquet]' \
    && useradd --create-home --uid "${USER_ID}" voxgraft \
    && mkdir /work && chown voxgraft /work

USER voxgraft
WORKDIR /work
# The web interface, if it is asked for.
EXPOSE 7860
ENTRYPOINT ["voxgraft"]
CMD ["--help"]
