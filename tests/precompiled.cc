// A program that does nothing: it carries the precompiled header of all test programs.
int main() { return 0; }
