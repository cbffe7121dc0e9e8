"""What a run shows of itself: report.html, charts, the model card, the Hub."""
