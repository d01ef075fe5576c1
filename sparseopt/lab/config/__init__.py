"""What is to be trained, and how: recipes, their files, and the schedules they name."""
