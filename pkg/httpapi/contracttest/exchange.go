package contracttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// Exchange is a request and what was answered to it.
type Exchange struct {
	// Request is what was asked. Its body is not read.
	Request *http.Request
	// Sent is the request's body, empty where it had none.
	Sent []byte
	// Status, Header and Received are the response's status, header and body.
	Status   int
	Header   http.Header
	Received []byte
}

// problemJSON is the media type of problems, RFC 9457.
const problemJSON = "application/problem+json"

// Check returns what of the exchange is not as documented, nil where all is, and
// then counts it:
//
//   - the status is documented for the operation;
//   - header and body match the schema of that status, and what is refused is
//     refused with a problem whose status is the response's;
//   - every field of the response is documented;
//   - what was accepted was as documented;
//   - a path or method that is not documented is answered 404 or 405.
func (c *Contract) Check(e *Exchange) error {
	route, params, err := c.find(e.Request)
	if err != nil {
		return c.name(e, errors.Join(c.frame(e), c.undocumented(e)))
	}
	faults := []error{c.frame(e), c.response(e, route, params)}
	if e.Request.Method != http.MethodHead {
		faults = append(faults, undocumentedFields(route.Operation, e))
	}
	if e.Status < http.StatusMultipleChoices {
		without := slices.Contains(c.anyBody, route.Operation.OperationID)
		if err := c.request(e.Request, e.Sent, route, params, without); err != nil {
			faults = append(faults, fmt.Errorf("the request is not as documented, and was accepted: %w", err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return c.name(e, err)
	}
	c.note(Pair{route.Operation.OperationID, e.Status})
	return nil
}

// CheckRequest returns what of the request is not as documented. Its body is not
// read: it is sent.
func (c *Contract) CheckRequest(r *http.Request, sent []byte) error {
	route, params, err := c.find(r)
	if err != nil {
		return err
	}
	return c.request(r, sent, route, params, false)
}

// name says of which exchange the error is.
func (c *Contract) name(e *Exchange, err error) error {
	if err == nil {
		return nil
	}
	const most = 2000
	return fmt.Errorf("%s %s is answered %d: %w\nsent: %.*s\nreceived: %.*s",
		e.Request.Method, e.Request.URL.Path, e.Status, err, most, e.Sent, most, e.Received)
}

// frame holds the response against what holds for all.
func (c *Contract) frame(e *Exchange) error {
	var faults []error
	if e.Header.Get("X-Request-Id") == "" {
		faults = append(faults, errors.New("the response has no X-Request-Id"))
	}
	if e.Header.Get("X-Content-Type-Options") != "nosniff" {
		faults = append(faults, errors.New("the response may be sniffed"))
	}
	if e.Status >= http.StatusBadRequest && e.Request.Method != http.MethodHead {
		faults = append(faults, c.problem(e))
	}
	return errors.Join(faults...)
}

// problem holds a refusal against the schema of problems, whichever operation it
// is of.
func (c *Contract) problem(e *Exchange) error {
	if got := e.Header.Get("Content-Type"); got != problemJSON {
		return fmt.Errorf("a problem has the content type %q", got)
	}
	var found map[string]any
	if err := json.Unmarshal(e.Received, &found); err != nil {
		return fmt.Errorf("the problem is no JSON object: %w", err)
	}
	if err := c.doc.Components.Schemas["Problem"].Value.VisitJSON(found); err != nil {
		return fmt.Errorf("the problem is not as documented: %w", err)
	}
	if found["status"] != float64(e.Status) {
		return fmt.Errorf("the problem says that the status is %v", found["status"])
	}
	return nil
}

// undocumented judges the answer to a path or method that is not documented. A
// server that shuts down says so first.
func (c *Contract) undocumented(e *Exchange) error {
	switch e.Status {
	case http.StatusNotFound, http.StatusServiceUnavailable:
		return nil
	case http.StatusMethodNotAllowed:
		if e.Header.Get("Allow") == "" {
			return errors.New("the response has no Allow")
		}
		return nil
	}
	return errUndocumented
}

// response holds a response against the document.
func (c *Contract) response(e *Exchange, route *routers.Route, params map[string]string) error {
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: e.Request, PathParams: params, Route: route},
		Status:                 e.Status, Header: e.Header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	input.SetBodyBytes(e.Received)
	if err := openapi3filter.ValidateResponse(e.Request.Context(), input); err != nil {
		return fmt.Errorf("the response is not as documented: %w", err)
	}
	return nil
}

// request holds a request against the document, its body unless any will do. What
// the library knows less of than the document and the RFCs say is made plain to it
// first: a field that is null is as one that is not there, and a media type has no
// case. A query that does not parse has no parameters to look at.
func (c *Contract) request(r *http.Request, sent []byte, route *routers.Route, params map[string]string, anyBody bool) error {
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		return fmt.Errorf("the query does not parse: %w", err)
	}
	probe := r.Clone(r.Context())
	probe.GetBody = nil // It would be the body as it was.
	sent = withoutNulls(sent)
	if declared := probe.Header.Get("Content-Type"); declared != "" {
		probe.Header.Set("Content-Type", strings.ToLower(declared))
	}
	probe.Body, probe.ContentLength = io.NopCloser(bytes.NewReader(sent)), int64(len(sent))
	if len(sent) == 0 {
		probe.Body = http.NoBody
	}
	return openapi3filter.ValidateRequest(r.Context(), &openapi3filter.RequestValidationInput{
		Request: probe, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			// Who may call is not asked here: the document says only that a token may
			// be sent.
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, ExcludeRequestBody: anyBody,
			SkipSettingDefaults: true,
		},
	})
}

// withoutNulls returns a JSON object without the fields that are null, at any
// depth. What is no JSON object is returned as it is.
func withoutNulls(body []byte) []byte {
	var object map[string]any
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil || decoder.More() || object == nil {
		return body
	}
	drop(object)
	kept, _ := json.Marshal(object) // It was JSON before: it can not fail.
	return kept
}

// drop drops the fields that are null, of objects in lists too.
func drop(value any) {
	switch value := value.(type) {
	case map[string]any:
		maps.DeleteFunc(value, func(_ string, field any) bool { return field == nil })
		for _, field := range value {
			drop(field)
		}
	case []any:
		for _, item := range value {
			drop(item)
		}
	}
}
