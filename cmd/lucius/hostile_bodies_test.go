//go:build integration && !race

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// posting returns a request up to its body.
func (f *attackedServer) posting(token, path, headers string) string {
	text := "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + headers
	if token != "" {
		text += "Authorization: Bearer " + token + "\r\n"
	}
	return text + "\r\n"
}

// read reads one response. If the connection is closed without one, the status is 0.
func read(conn net.Conn) (answer, error) {
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, string(body), response.Header}, err
}

// TestHostile_EndlessBodies sends bodies that are far too large or have no end.
// They are refused, with and without a credential, and the connection ends.
func TestHostile_EndlessBodies(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	const chunked, declared = "Transfer-Encoding: chunked\r\n", "Content-Length: 99999999999\r\n"
	for _, test := range []struct{ name, token, path, headers, code string }{
		{"chunked", f.token, "/v1/commands", chunked, "too_large"},
		{"chunked, to a worker's path", f.token, "/v1/work:claim", chunked, "too_large"},
		{"declared", f.token, "/v1/commands:batch", declared, "too_large"},
		{"chunked, by a stranger", "", "/v1/commands", chunked, "unauthenticated"},
		{"declared, by a stranger", "", "/v1/commands", declared, "unauthenticated"},
	} {
		f.while(func() {
			f.allAtOnce(20, func(conn net.Conn) {
				go pour(conn, f.posting(test.token, test.path, test.headers), "10\r\n\"234567890123456\r\n")
				got, err := read(conn)
				if err != nil {
					return // Data sent after the server closed the connection may reset it and lose the response.
				}
				f.expectProblem(http.MethodPost, test.path, got, test.code)
				f.expectClosed(conn)
			})
		})
	}
}

// TestHostile_BodiesThatAreRefusedAreAnswered sends bodies just beyond the limit.
// Their senders see the answer.
func TestHostile_BodiesThatAreRefusedAreAnswered(t *testing.T) {
	t.Parallel()
	f := startAttacked(t, "--max-body-bytes", "10000", "--max-payload-bytes", "5000")
	body := fmt.Sprintf("%-10001s", `{"owner":"o"}`)
	for _, path := range []string{"/v1/commands", "/v1/commands:batch", "/v1/work:claim", "/v1/callbacks/result", "/v1/admin/pauses"} {
		f.expectProblem(http.MethodPost, path, f.do(t, http.MethodPost, path, body), "too_large")
	}
	f.while(func() {})
}

// TestHostile_FormsWithoutACredential sends forms to the console, whole but for the last bytes, which
// never come.
func TestHostile_FormsWithoutACredential(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	const form = "POST /ui/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 262000\r\n\r\n"
	for _, path := range []string{"sign-in", "do/cancel"} {
		f.while(func() {
			f.allAtOnce(3000, func(conn net.Conn) {
				if _, err := fmt.Fprintf(conn, form+"token=%0260000d", path, 0); err == nil {
					_, _ = read(conn) // Until it is refused, or the time for its body is over.
				}
			})
		})
	}
}
