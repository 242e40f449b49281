// Command apidocs makes the page that people read the contract on: one HTML file
// of the OpenAPI document and of the policy of package auth, which needs no
// network, no script and no other file. go generate runs it.
//
//	api/openapi.yaml ──► document ──┐
//	pkg/auth          ──► rules  ───┼─► page.html.tmpl ──► api/docs.gen.html
//	pkg/apierror      ──► codes  ───┘
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
)

func main() {
	from := flag.String("document", "openapi.yaml", "the OpenAPI document")
	to := flag.String("o", "docs.gen.html", "the page")
	flag.Parse()
	if err := run(*from, *to); err != nil {
		fmt.Fprintln(os.Stderr, "apidocs:", err)
		os.Exit(1)
	}
}

// run makes the page of the document.
func run(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	page, err := render(text)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return os.WriteFile(to, page, 0o600) //nolint:gosec // The caller names the file.
}

// render returns the page of a document.
func render(text []byte) ([]byte, error) {
	parsed, err := parse(text)
	if err != nil {
		return nil, err
	}
	shown, err := view(parsed)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := layout.Execute(&out, shown); err != nil {
		return nil, fmt.Errorf("lay the page out: %w", err)
	}
	return out.Bytes(), nil
}
