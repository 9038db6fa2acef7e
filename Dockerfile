# voxgraft in a container. For a processor:   docker build -t voxgraft .
# For NVIDIA cards:                           docker build -t voxgraft:gpu --build-arg TORCH=cu130 .
# How it is run, and what to mount: docs/rented-gpus.md

FROM python:3.12-slim

# cpu, or the CUDA version of a torch that pytorch.org has wheels for, such as cu130.
ARG TORCH=cpu
# Who owns what the container writes into the mounted folder.
ARG USER_ID=1000

WORKDIR /opt/voxgraft
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY voxgraft ./voxgraft
RUN pip install --no-cache-dir --extra-index-url "https://download.pytorch.org/whl/${TORCH}" \
        -c constraints.txt '.[ui,hub,tensorboard,parquet]' \
    && useradd --create-home --uid "${USER_ID}" voxgraft \
    && mkdir /work && chown voxgraft /work

USER voxgraft
WORKDIR /work
# The web interface, if it is asked for.
EXPOSE 7860
ENTRYPOINT ["voxgraft"]
CMD ["--help"]
