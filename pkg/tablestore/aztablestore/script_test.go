package aztablestore_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

// scriptedConnection is never dialled: scripts answer instead.
const scriptedConnection = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;TableEndpoint=http://nowhere.invalid/a"

type (
	request  = http.Request
	response = http.Response
)

// answer handles one request.
type answer func(req *http.Request) (*http.Response, error)

// script is a service that gives its answers in order, and repeats the last
// one.
type script struct {
	mu      sync.Mutex
	answers []answer
	choose  func(*request) answer // Instead of the answers.
	seen    []string              // Bodies of the requests, or the addresses of those without one.
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	seen := req.URL.RequestURI()
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		seen = string(body)
	}
	s.mu.Lock()
	s.seen = append(s.seen, seen)
	answers := s.answers
	if len(answers) > 1 {
		s.answers = answers[1:]
	}
	s.mu.Unlock()
	if s.choose != nil {
		return s.choose(req)(req)
	}
	return answers[0](req)
}

// requests returns how many requests there were.
func (s *script) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

// scripted returns a store whose service gives these answers.
func scripted(t testing.TB, options aztablestore.Options, answers ...answer) (*aztablestore.Store, *script) {
	t.Helper()
	service := &script{answers: answers}
	options.Connection, options.Transport = scriptedConnection, service
	return open(t, options), service
}

// connects reports a connection to the request's trace.
func connects(req *http.Request) {
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil {
		trace.GetConn(req.URL.Host)
		trace.GotConn(httptrace.GotConnInfo{})
	}
}

// chosen returns a store whose service chooses the answer to each request.
func chosen(t testing.TB, options aztablestore.Options, choose func(*request) answer) *aztablestore.Store {
	t.Helper()
	options.Connection, options.Transport = scriptedConnection, &script{choose: choose}
	return open(t, options)
}

// reply answers with that status and body. Headers are pairs.
func reply(status int, body string, headers ...string) answer {
	return func(req *http.Request) (*http.Response, error) {
		connects(req)
		header := http.Header{}
		for i := 0; i < len(headers); i += 2 {
			header.Set(headers[i], headers[i+1])
		}
		return &http.Response{
			Status: fmt.Sprint(status, " ", http.StatusText(status)), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: req,
		}, nil
	}
}

// refuses answers with the service's error.
func refuses(status int, code string, headers ...string) answer {
	return reply(status, complaint(code, "The reason."), headers...)
}

// lost accepts the request and gives no answer.
func lost(err error) answer {
	return func(req *http.Request) (*http.Response, error) {
		connects(req)
		return nil, err
	}
}

// silent fails without tracing how far the request got.
func silent(*request) (*response, error) { return nil, errNetwork }

// unreachable finds no connection.
func unreachable(err error) answer {
	return func(req *http.Request) (*http.Response, error) {
		httptrace.ContextClientTrace(req.Context()).GetConn(req.URL.Host)
		return nil, err
	}
}

// hangs accepts the request and answers when its context ends.
func hangs(req *http.Request) (*http.Response, error) {
	connects(req)
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func complaint(code, message string) string {
	return fmt.Sprintf(`{"odata.error":{"code":%q,"message":{"lang":"en-US","value":%q}}}`, code, message+"\nRequestId:1\nTime:2")
}

const batchType = "multipart/mixed; boundary=batchresponse_1"

// multipart returns the body of an answer to a transaction with those parts.
func multipart(parts ...string) string {
	text := "--batchresponse_1\r\nContent-Type: multipart/mixed; boundary=changesetresponse_2\r\n\r\n"
	for _, part := range parts {
		text += "--changesetresponse_2\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n" + part + "\r\n"
	}
	return text + "--changesetresponse_2--\r\n--batchresponse_1--\r\n"
}

// done is the part of an op that succeeded.
func done(etag string) string {
	part := "HTTP/1.1 204 No Content\r\nDataServiceVersion: 3.0;\r\n"
	if etag != "" {
		part += "ETag: " + etag + "\r\n"
	}
	return part + "\r\n"
}

// failed is the part of an op that stopped the transaction.
func failed(status int, code, message string) string {
	body := complaint(code, message)
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-ID: 1\r\nContent-Type: application/json\r\n\r\n%s\r\n", status, http.StatusText(status), body)
}

// inside answers a transaction with those parts under the outer status 202.
func inside(parts ...string) answer {
	return reply(http.StatusAccepted, multipart(parts...), "Content-Type", batchType)
}

const (
	table = "table"
	one   = `W/"datetime'2026-01-01T00%3A00%3A00.0000001Z'"`
	two   = `W/"datetime'2026-01-01T00%3A00%3A00.0000002Z'"`
)

func key(row string) tablestore.Key {
	return tablestore.Key{Table: table, Partition: "p", Row: row}
}

func number(n int64) tablestore.Properties {
	return tablestore.Properties{{Name: "n", Value: tablestore.Int(n)}}
}

func insert(row string) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Insert, Key: key(row), Properties: number(1)}
}

func put(row string) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Put, Key: key(row), Properties: number(1)}
}

func replace(row string) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Replace, Key: key(row), ETag: one, Properties: number(2)}
}

func remove(row string) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Delete, Key: key(row), ETag: one}
}

func discard(row string) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Discard, Key: key(row)}
}
