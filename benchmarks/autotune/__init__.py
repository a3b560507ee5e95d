"""How near the best settings a tuner comes, on 17 kinds of pipelines."""
