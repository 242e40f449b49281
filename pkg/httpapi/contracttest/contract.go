// Package contracttest checks the requests and responses of a Lucius server against
// the OpenAPI document, and counts the operations and status codes that it saw. It is
// for tests only. It reads the document with another library than the one that
// generates the server's glue, so that the two do not share a mistake.
//
//	test ─► http.Client ─► Transport ─► server
//	                           │
//	                           ▼
//	                       Contract ─► Report: operations × status codes
package contracttest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/lucius-project/lucius/api"
)

// Pair is an operation and a status code that it answers with.
type Pair struct {
	// Operation is the operation's id.
	Operation string
	Status    int
}

// Operation is an operation of the document.
type Operation struct {
	// ID, Method and Path are as in the document.
	ID, Method, Path string
	// Statuses are the documented status codes, in order.
	Statuses []int
}

// Contract is the OpenAPI document, with the pairs that were seen. It is safe for
// concurrent use.
type Contract struct {
	doc    *openapi3.T
	router routers.Router

	mu   sync.Mutex
	seen map[Pair]int
}

// registerDecoders registers the media types of text bodies, once, because the library's
// registry is global. The library decodes only registered media types.
var registerDecoders = sync.OnceFunc(func() {
	for _, mediaType := range []string{"application/openapi+yaml", "application/openmetrics-text", "text/event-stream", "text/html"} {
		openapi3filter.RegisterBodyDecoder(mediaType, openapi3filter.PlainBodyDecoder)
	}
})

// New returns the contract of [api.Spec]. The error says why the document cannot be
// used.
func New() (*Contract, error) {
	registerDecoders()
	doc, err := openapi3.NewLoader().LoadFromData(api.Spec())
	if err != nil {
		return nil, fmt.Errorf("contracttest: load the document: %w", err)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("contracttest: routes of the document: %w", err)
	}
	return &Contract{doc: doc, router: router, seen: map[Pair]int{}}, nil
}

// Operations returns the documented operations, by path and method. The caller
// owns them.
func (c *Contract) Operations() []Operation {
	var all []Operation
	for path, item := range c.doc.Paths.Map() {
		for method, operation := range item.Operations() {
			found := Operation{ID: operation.OperationID, Method: method, Path: path}
			for text := range operation.Responses.Map() {
				if status, err := strconv.Atoi(text); err == nil {
					found.Statuses = append(found.Statuses, status)
				}
			}
			slices.Sort(found.Statuses)
			all = append(all, found)
		}
	}
	slices.SortFunc(all, func(a, b Operation) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Method, b.Method))
	})
	return all
}

// Find returns the request's operation, or an error if the document has none for its
// path and method. HEAD counts as GET.
func (c *Contract) Find(r *http.Request) (operationID string, err error) {
	route, _, err := c.find(r)
	if err != nil {
		return "", err
	}
	return route.Operation.OperationID, nil
}

// errUndocumented is returned for a request without an operation.
var errUndocumented = errors.New("the document has no such operation")

// find is Find, with the route and path parameters for the library.
func (c *Contract) find(r *http.Request) (*routers.Route, map[string]string, error) {
	probe := *r
	if probe.Method == http.MethodHead {
		probe.Method = http.MethodGet
	}
	route, params, err := c.router.FindRoute(&probe)
	if err != nil {
		return nil, nil, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, errUndocumented)
	}
	return route, params, nil
}

// Report lists the operations and status codes of a contract that were seen.
type Report struct {
	operations []Operation
	seen       map[Pair]int
}

// Report returns the pairs seen so far.
func (c *Contract) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Report{operations: c.Operations(), seen: maps.Clone(c.seen)}
}

// Missing returns the documented pairs that were not seen, in the order of
// [Contract.Operations].
func (r Report) Missing() []Pair {
	var missing []Pair
	for _, operation := range r.operations {
		for _, status := range operation.Statuses {
			if pair := (Pair{operation.ID, status}); r.seen[pair] == 0 {
				missing = append(missing, pair)
			}
		}
	}
	return missing
}

// Seen returns how many documented pairs were seen, and how many there are.
func (r Report) Seen() (seen, documented int) {
	for _, operation := range r.operations {
		documented += len(operation.Statuses)
	}
	return documented - len(r.Missing()), documented
}

// String has a line for each operation: its id, its method and path, and each of its
// status codes, in parentheses if it was not seen. The last line is the sum.
func (r Report) String() string {
	var text strings.Builder
	for _, operation := range r.operations {
		fmt.Fprintf(&text, "%-17s %-4s %-38s", operation.ID, operation.Method, operation.Path)
		for _, status := range operation.Statuses {
			if r.seen[Pair{operation.ID, status}] > 0 {
				fmt.Fprintf(&text, "  %d ", status)
			} else {
				fmt.Fprintf(&text, " (%d)", status)
			}
		}
		text.WriteByte('\n')
	}
	seen, documented := r.Seen()
	fmt.Fprintf(&text, "%d operations; %d of %d documented pairs of operation and status code were exercised\n",
		len(r.operations), seen, documented)
	return text.String()
}
