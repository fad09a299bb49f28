"""The kill experiment: real workers, SIGKILL at the three worst moments, both modes."""
