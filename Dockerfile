# bothways serve on a CPU, as a user without rights. Nothing is downloaded when it runs.
#   docker build -t bothways --build-arg TORCH_INDEX=ADDRESS .
#   docker run --rm --stop-timeout 75 -p 127.0.0.1:8000:8000 -v ./models:/models:ro bothways en reviews=/models/reviews
FROM python:3.12-slim AS build
# The address of torch's own index for CPUs. Without it, x86_64 gets torch with CUDA: 2.7 GB to download, not 0.2 GB.
ARG TORCH_INDEX=
ARG EXTRAS=torch,serve,bm25
RUN python -m venv --without-pip /venv
WORKDIR /source
COPY constraints.txt .
# Without what torch depends on, of which that index may lack the pinned versions: it comes with the next step.
RUN pip --python /venv/bin/python install --no-cache-dir --no-deps --constraint constraints.txt \
    ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip --python /venv/bin/python install --no-cache-dir --constraint constraints.txt ".[$EXTRAS]"
# What compiles against torch and the tests of packages, 0.3 GB. `import torch` looks for torch_shm_manager.
RUN cd /venv/lib/python3.*/site-packages \
    && rm -rf torch/include torch/test \
    && find torch/bin -type f ! -name torch_shm_manager -delete \
    && find . -type d -name tests -prune -exec rm -rf {} +

FROM python:3.12-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin bothways
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
USER 10001
WORKDIR /models
EXPOSE 8000
STOPSIGNAL SIGTERM
# Not urllib, which would ask a proxy for 127.0.0.1 where HTTP_PROXY is set.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "from http.client import HTTPConnection as To; to = To('127.0.0.1', 8000, timeout=4); to.request('GET', '/ready'); exit(to.getresponse().status != 200)"]
ENTRYPOINT ["bothways", "serve", "--host", "0.0.0.0"]
CMD ["en"]
