"""What a program reports through its tracker: MLflow. The launcher of each node receives it on 127.0.0.1."""
