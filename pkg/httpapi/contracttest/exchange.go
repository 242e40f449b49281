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

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// Exchange is a request and its response.
type Exchange struct {
	// Request is the request. Its body is not read.
	Request *http.Request
	// Sent is the request's body, empty if it had none.
	Sent []byte
	// Status, Header and Received are the response's status, header and body.
	Status   int
	Header   http.Header
	Received []byte
}

// problemJSON is the media type of problems, RFC 9457.
const problemJSON = "application/problem+json"

// Check returns how the exchange differs from the document. It counts an exchange
// that does not differ. The rules:
//
//   - the status is documented for the operation;
//   - header and body match the schema of that status, and a refusal is a problem
//     with the response's status;
//   - every field of the response is documented;
//   - an accepted request was as documented;
//   - a path or method that is not documented is answered 404 or 405.
func (c *Contract) Check(e *Exchange) error {
	route, params, err := c.find(e.Request)
	if err != nil {
		return c.describe(e, errors.Join(c.common(e), undocumented(e)))
	}
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: e.Request, PathParams: params, Route: route},
		Status:                 e.Status, Header: e.Header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	input.SetBodyBytes(e.Received)
	faults := []error{c.common(e)}
	if err := openapi3filter.ValidateResponse(e.Request.Context(), input); err != nil {
		faults = append(faults, fmt.Errorf("the response is not as documented: %w", err))
	}
	if e.Request.Method != http.MethodHead {
		faults = append(faults, undocumentedFields(route.Operation, e))
	}
	if e.Status < http.StatusMultipleChoices {
		// Each entry of a batch gets its own answer.
		anyBody := strings.HasSuffix(route.Operation.OperationID, "Batch")
		if err := c.request(e.Request, e.Sent, route, params, anyBody); err != nil {
			faults = append(faults, fmt.Errorf("the request is not as documented, and was accepted: %w", err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return c.describe(e, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[Pair{route.Operation.OperationID, e.Status}]++
	return nil
}

// CheckRequest returns how the request differs from the document. It checks sent
// instead of reading the request's body.
func (c *Contract) CheckRequest(r *http.Request, sent []byte) error {
	route, params, err := c.find(r)
	if err != nil {
		return err
	}
	return c.request(r, sent, route, params, false)
}

// describe adds the exchange to the error.
func (c *Contract) describe(e *Exchange, err error) error {
	if err == nil {
		return nil
	}
	const most = 2000
	return fmt.Errorf("%s %s is answered %d: %w\nsent: %.*s\nreceived: %.*s",
		e.Request.Method, e.Request.URL.Path, e.Status, err, most, e.Sent, most, e.Received)
}

// common checks the rules that hold for all responses.
func (c *Contract) common(e *Exchange) error {
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

// problem checks a refusal of any operation against the schema of problems.
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

// undocumented checks the answer to a path or method that is not documented. A server that
// shuts down may answer that it does.
func undocumented(e *Exchange) error {
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

// request checks a request against the document; with anyBody it skips the body. It
// first removes what the document and the RFCs allow but the library does not
// understand: null fields and upper case in media types. If the query does not parse, there
// are no parameters to check.
func (c *Contract) request(r *http.Request, sent []byte, route *routers.Route, params map[string]string, anyBody bool) error {
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		return fmt.Errorf("the query does not parse: %w", err)
	}
	probe := r.Clone(r.Context())
	probe.GetBody = nil // It would return the original body.
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
			// Authentication is not checked: the document says only that a token may be
			// sent.
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, ExcludeRequestBody: anyBody,
			SkipSettingDefaults: true,
		},
	})
}

// withoutNulls returns a JSON object without its null fields, at any depth. Any other
// text is returned unchanged.
func withoutNulls(body []byte) []byte {
	var object map[string]any
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil || decoder.More() || object == nil {
		return body
	}
	dropNulls(object)
	kept, _ := json.Marshal(object) // It was JSON before: it cannot fail.
	return kept
}

// dropNulls removes null fields, also those of objects in lists.
func dropNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		maps.DeleteFunc(value, func(_ string, field any) bool { return field == nil })
		for _, field := range value {
			dropNulls(field)
		}
	case []any:
		for _, item := range value {
			dropNulls(item)
		}
	}
}

// undocumentedFields returns an error that names a field of the response that is not
// in the document. Schemas allow such fields, because clients must ignore unknown
// ones, but the server must document every field that it sends.
func undocumentedFields(operation *openapi3.Operation, e *Exchange) error {
	response := operation.Responses.Status(e.Status)
	if response == nil {
		return nil
	}
	mediaType, _, _ := strings.Cut(e.Header.Get("Content-Type"), ";")
	content := response.Value.Content.Get(mediaType)
	if !strings.HasSuffix(mediaType, "json") || content == nil || content.Schema == nil {
		return nil
	}
	var value any
	if err := json.Unmarshal(e.Received, &value); err != nil {
		return fmt.Errorf("the response is no JSON: %w", err)
	}
	if pointer := unknown(content.Schema.Value, value, ""); pointer != "" {
		return fmt.Errorf("the response has %s, which is not documented", pointer)
	}
	return nil
}

// unknown returns the JSON pointer of a field that the schema does not have, empty if
// there is none.
func unknown(s *openapi3.Schema, value any, at string) string {
	switch value := value.(type) {
	case map[string]any:
		fields, open := fieldsOf(s)
		for _, name := range slices.Sorted(maps.Keys(value)) {
			field, known := fields[name]
			switch {
			case !known && !open:
				return at + "/" + name
			case !known:
			default:
				if found := unknown(field.Value, value[name], at+"/"+name); found != "" {
					return found
				}
			}
		}
	case []any:
		if s.Items == nil {
			return ""
		}
		for i := range value {
			if found := unknown(s.Items.Value, value[i], fmt.Sprintf("%s/%d", at, i)); found != "" {
				return found
			}
		}
	}
	return ""
}

// fieldsOf returns the fields of an object, including those of its allOf schemas, and
// whether it may have others.
func fieldsOf(s *openapi3.Schema) (fields openapi3.Schemas, open bool) {
	fields = maps.Clone(s.Properties)
	if fields == nil {
		fields = openapi3.Schemas{}
	}
	open = s.AdditionalProperties.Has != nil && *s.AdditionalProperties.Has
	for _, part := range s.AllOf {
		more, also := fieldsOf(part.Value)
		maps.Copy(fields, more)
		open = open || also
	}
	return fields, open || len(fields) == 0
}
