"""What a training run needs beside mathematics; knows torch and accelerate, never unet or data_utils."""
