"""The outputs of a run for readers: report.html, charts, the model card, the Hub."""
