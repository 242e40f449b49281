package httpapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
)

// docs is the API page for people.
type docs struct {
	page   []byte
	policy string
}

// newDocs returns the page with a content security policy that allows only the
// page's own style, by its hash: no script, no frame, no external resource.
func newDocs(page []byte) *docs {
	_, rest, _ := bytes.Cut(page, []byte("<style>"))
	style, _, _ := bytes.Cut(rest, []byte("</style>"))
	hash := sha256.Sum256(style)
	return &docs{page: page, policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}
}

// GetDocs is GET /docs.
func (e *endpoints) GetDocs(w http.ResponseWriter, _ *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", e.docs.policy)
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-cache")
	e.respond.send(w, http.StatusOK, "text/html; charset=utf-8", e.docs.page)
}
