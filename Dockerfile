# docker build -t unet .
# docker run --gpus all --ipc=host -v DATA:/data -v "$PWD/runs:/app/runs" unet \
#     accelerate launch --config_file accelerate_configs/multi_gpu.yaml --num_processes 8 train.py --dataset /data
# Loader processes hand batches over in shared memory, hence --ipc=host. PyPI's torch brings CUDA along; without a GPU
# leave out --gpus and take cpu.yaml. Ctrl-C and `docker stop` reach the run, which saves itself.
FROM python:3.11-slim
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
ENV PYTHONUNBUFFERED=1 XDG_CACHE_HOME=/app/runs/.cache
STOPSIGNAL SIGTERM
CMD ["accelerate", "launch", "--config_file", "accelerate_configs/cpu.yaml", "train.py", "--base-channels", "12", "--depth", "3"]
