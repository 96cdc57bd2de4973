# A container with profkit next to PyTorch. Not tried yet: no container runtime was at hand.
#
#   docker build -t profkit .
#   docker run --gpus all --shm-size 8g --ulimit memlock=-1 --ulimit stack=67108864 -v "$PWD:/job" -w /job \
#       profkit profkit run -- python train.py
#
# --shm-size: workers of the data loader hand batches over in /dev/shm, of which a container has 64 MB.
# --ulimit: NCCL pins memory, and the containers of NVIDIA ask for this stack.
# Lines of code are sampled by another process: add --cap-add SYS_PTRACE if 'profkit run' says that it may not.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir torch torchvision /wheels/*.whl && rm -r /wheels
