// Package demo is the main job on a small stage: it runs three platform
// services that pull their work over HTTP, submits a command per document to a
// server, shows how they get on, and searches the index that comes of it.
package demo
