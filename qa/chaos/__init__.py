"""What breaks it: damaged files, wrong inputs, killed processes and many users at once (`make chaos`)."""
