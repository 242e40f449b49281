// Package config reads the server's configuration: flags, then environment
// variables, then defaults. A value that makes no sense is refused with a
// sentence that names it; nothing is guessed.
package config
