// Package python has the files of the Python SDK, for lucius init, which writes them next
// to a worker: the SDK is one folder without dependencies.
package python

import "embed"

// Files has the folder lucius.
//
//go:embed lucius/*.py lucius/py.typed
var Files embed.FS
