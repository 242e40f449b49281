// Package packaging holds no code, only tests: of the files by which Lucius is installed.
package packaging
