//go:build !killpoints

package main

import (
	"net/http"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A binary that is built with the tag killpoints can be told to die between any
// two writes; see killpoints.go. Any other has nothing in between.

func killableStore(store tablestore.Store) tablestore.Store { return store }
func killableAnswers(handler http.Handler) http.Handler     { return handler }
