"""The part of OpenAI's API that fine-tunes models, so that programs written for it run here."""
