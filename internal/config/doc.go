// Package config reads the server's configuration: flags, then environment
// variables, then defaults. It refuses an invalid value with an error that names it,
// and guesses nothing.
package config
