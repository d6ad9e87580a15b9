# bothways serve on a CPU, as a user without rights. Nothing is downloaded when it runs.
#   docker build -t bothways .
#   docker run --rm -p 127.0.0.1:8000:8000 -v ./models:/models:ro bothways en reviews=/models/reviews
FROM python:3.12-slim AS build
# An index with torch's builds without CUDA, which are smaller by gigabytes: --build-arg TORCH_INDEX=ADDRESS
ARG TORCH_INDEX=
ARG EXTRAS=torch,serve,bm25
RUN python -m venv /venv
WORKDIR /source
COPY constraints.txt .
RUN /venv/bin/pip install --no-cache-dir --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch numpy
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /venv/bin/pip install --no-cache-dir --constraint constraints.txt ".[$EXTRAS]"

FROM python:3.12-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin bothways
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
USER 10001
WORKDIR /models
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
ENTRYPOINT ["bothways", "serve", "--host", "0.0.0.0"]
CMD ["en"]
