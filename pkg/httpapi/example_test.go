package httpapi_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

func ExampleNew() {
	var use useCases // The program's adapters of its use cases.
	server, err := httpapi.New(httpapi.Config{
		Commands: commands{&use}, Jobs: jobs{&use}, Callbacks: callbacks{&use}, Work: work{&use}, Admin: admin{&use},
		Failures: failures{&use}, Pauses: pauses{&use}, Webhooks: webhooks{&use}, Protocols: protocols{&use},
		Readiness: readiness{&use}, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		Access: access.New(access.Config{}), // On loopback, where nobody is asked who they are.
		Owners: owners{},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	response := httptest.NewRecorder()
	server.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	body, _ := io.ReadAll(response.Body)
	fmt.Printf("%d %s", response.Code, body)
	// Output: 200 {"status":"ok"}
}
