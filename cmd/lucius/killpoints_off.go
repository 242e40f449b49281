//go:build !killpoints

package main

import (
	"net/http"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Only a binary that is built with the tag killpoints can be told to die between two
// writes, or to break its relay's window; see killpoints.go.

func killableStore(store tablestore.Store) tablestore.Store { return store }
func killableAnswers(handler http.Handler) http.Handler     { return handler }
func breakableWindow(*seqledger.Window)                     {}
