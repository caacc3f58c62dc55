"""What a sample is: its inputs, their spectrum, correlation and means, and its named draws."""
