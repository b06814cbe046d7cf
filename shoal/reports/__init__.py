"""Tables, curves and pages made from run directories."""
