# docker build -t unet .
# docker run --gpus all --ipc=host -v "$PWD/DATA:/data" -v "$PWD/runs:/app/runs" unet \
#     accelerate launch --config_file accelerate_configs/multi_gpu.yaml --num_processes 8 train.py --dataset /data
# Loader processes hand batches over in shared memory, hence --ipc=host. PyPI's torch brings CUDA along; without a GPU
# leave out --gpus, and start `python train.py --dataset /data`. On `docker stop -t 60` the run saves itself; not under
# accelerate's launcher of a single process, which does not pass the signal on.
FROM python:3.11-slim
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
ENV PYTHONUNBUFFERED=1 XDG_CACHE_HOME=/app/runs/.cache
STOPSIGNAL SIGTERM
CMD ["python", "train.py", "--base-channels", "12", "--depth", "3"]
