"""The learner's loop: progress, hints, pristine files, trials and the watch."""
