"""Give each of the files to the page at an address, one after another, and print what it answers as JSON.

python drive_page.py URL FOLDER_FOR_MASKS FILE...
"""

import json
import sys

from gradio_client import Client, handle_file

url, folder, *files = sys.argv[1:]
client = Client(url, download_files=folder, verbose=False)
print(json.dumps([client.predict(handle_file(file), api_name="/predict") for file in files]))
