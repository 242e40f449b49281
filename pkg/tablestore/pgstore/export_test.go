package pgstore

// RolledBack is rolledBack, for tests with answers of servers that speak other languages.
var RolledBack = rolledBack
