// Package contracttest holds what a server of Lucius is asked, and what it
// answers, against the OpenAPI document, and counts which operations and status
// codes were seen. It is for tests alone. It reads the document by itself, with
// another library than the one that the server's glue is made by, so that the two
// do not share a mistake.
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
	"net/http"
	"slices"
	"strconv"
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

// Contract is the OpenAPI document, and what was seen of it. It is safe for
// concurrent use.
type Contract struct {
	doc     *openapi3.T
	router  routers.Router
	anyBody []string

	mu   sync.Mutex
	seen map[Pair]int
}

// Option changes how a [Contract] judges.
type Option func(*Contract)

// AnyBody lets the server accept any body for these operations: for servers whose
// use cases stand in for the real ones, and do not read what they are given.
func AnyBody(operations ...string) Option {
	return func(c *Contract) { c.anyBody = append(c.anyBody, operations...) }
}

// plainText are media types whose bodies are texts. The library decodes what it
// is told of alone.
var plainText = []string{"application/openapi+yaml", "application/openmetrics-text", "text/event-stream", "text/html"}

// registerDecoders tells the library of them, once: it keeps them in one place for
// the whole process.
var registerDecoders = sync.OnceFunc(func() {
	for _, mediaType := range plainText {
		openapi3filter.RegisterBodyDecoder(mediaType, openapi3filter.PlainBodyDecoder)
	}
})

// New returns the contract of [api.Spec]. The error says why the document can not
// be used.
func New(options ...Option) (*Contract, error) {
	registerDecoders()
	doc, err := openapi3.NewLoader().LoadFromData(api.Spec())
	if err != nil {
		return nil, fmt.Errorf("contracttest: load the document: %w", err)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("contracttest: routes of the document: %w", err)
	}
	// A batch is answered as a whole, and each of its commands by itself.
	c := &Contract{doc: doc, router: router, anyBody: []string{"submitBatch"}, seen: map[Pair]int{}}
	for _, option := range options {
		option(c)
	}
	return c, nil
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

// Find returns the operation that the request is for, or an error where the
// document has none for its path and method. HEAD is GET.
func (c *Contract) Find(r *http.Request) (operationID string, err error) {
	route, _, err := c.find(r)
	if err != nil {
		return "", err
	}
	return route.Operation.OperationID, nil
}

// errUndocumented is returned where no operation is for the request.
var errUndocumented = errors.New("the document has no such operation")

// find is Find, with what the library wants to know of the route.
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

// note counts what was seen.
func (c *Contract) note(pair Pair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[pair]++
}
