"""Exchange of captures with the real Timely and Differential Dataflow: files, sockets, and their messages."""
