package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/httpapi/contracttest"
)

// contract is the OpenAPI document that the requests and responses of these tests are checked
// against. A mismatch fails the run at its end, because no test waits for some of the
// goroutines.
var contract = sync.OnceValue(func() *contracttest.Contract {
	made, err := contracttest.New()
	if err != nil {
		panic(err)
	}
	return made
})

// faults are the mismatches.
var faults struct {
	mu   sync.Mutex
	seen []error
}

// contracted returns a transport that checks requests and responses against the document.
func contracted(base http.RoundTripper) http.RoundTripper {
	return &contracttest.Transport{Base: unhurried{base}, Contract: contract(), Fault: func(err error) {
		faults.mu.Lock()
		defer faults.mu.Unlock()
		faults.seen = append(faults.seen, err)
	}}
}

// headerTime is how long the server waits for the headers of a request.
const headerTime = 10 * time.Second

// unhurried sends a GET again if the server closed its connection without an answer after that time. On a busy
// machine the process of the tests may be stalled for so long before it sends the headers.
type unhurried struct{ http.RoundTripper }

func (u unhurried) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		began := time.Now()
		response, err := u.RoundTripper.RoundTrip(r)
		closed := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		if !closed || r.Method != http.MethodGet || time.Since(began) < headerTime {
			return response, err
		}
	}
}

// bodyOf returns the body of an answer of the generated client, and "no answer" for nil, which
// comes with an error: a test that fails has to print that error, not to panic.
func bodyOf[Response any](response *Response) string {
	if response == nil {
		return "no answer"
	}
	return string(reflect.ValueOf(response).Elem().FieldByName("Body").Bytes())
}

// holdToContract returns the exit code of the tests, which is not 0 after a mismatch. In a
// verbose run it prints the exercised operations.
func holdToContract(code int) int {
	faults.mu.Lock()
	found := slices.Clone(faults.seen)
	faults.mu.Unlock()
	for _, fault := range found {
		fmt.Fprintf(os.Stderr, "not as documented: %v\n", fault)
	}
	if testing.Verbose() {
		fmt.Fprintf(os.Stderr, "the contract, and what of it the real server was asked:\n%s", contract().Report())
	}
	if len(found) > 0 && code == 0 {
		return 1
	}
	return code
}
