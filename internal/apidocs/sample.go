package main

import (
	"fmt"
	"net/http"
	"strings"
)

// sample shows how to call an operation in one language.
type sample struct{ Language, Code string }

// samples return a call of the operation in each language, with the example of its body, if
// it has one, and of each path parameter. Each is complete and needs no SDK.
func samples(method, path string, parameters []field, body *bodyView) []sample {
	for i := range parameters {
		if p := &parameters[i]; p.In == "path" {
			path = strings.ReplaceAll(path, "{"+p.Name+"}", p.Example)
		}
	}
	call := sampleCall{Method: method, URL: "http://127.0.0.1:8080" + path}
	if body != nil {
		call.Media, call.Body = body.Media, body.Example
	}
	return []sample{{"curl", call.curl()}, {"Go", call.golang()}, {"Python", call.python()}, {"TypeScript", call.typescript()}}
}

// sampleCall is the call of the samples. Its body is JSON.
type sampleCall struct{ Method, URL, Media, Body string }

func (c *sampleCall) curl() string {
	text := "curl " + c.URL
	if c.Method != http.MethodGet && c.Body == "" {
		text = "curl -X " + c.Method + " " + c.URL
	}
	text += ` -H "Authorization: Bearer $LUCIUS_TOKEN"`
	if c.Body != "" {
		text += fmt.Sprintf(" \\\n  -H 'Content-Type: %s' -d '%s'", c.Media, strings.ReplaceAll(c.Body, "'", `'\''`))
	}
	return text
}

func (c *sampleCall) golang() string {
	body, header := "nil", ""
	if c.Body != "" {
		body = "strings.NewReader(`" + strings.ReplaceAll(c.Body, "`", "` + \"`\" + `") + "`)"
		header = fmt.Sprintf("request.Header.Set(\"Content-Type\", %q)\n", c.Media)
	}
	return fmt.Sprintf(`request, err := http.NewRequestWithContext(ctx, %q, %q, %s)
if err != nil {
	return err
}
%srequest.Header.Set("Authorization", "Bearer "+os.Getenv("LUCIUS_TOKEN"))
response, err := http.DefaultClient.Do(request)`, c.Method, c.URL, body, header)
}

func (c *sampleCall) python() string {
	body, header := "", ""
	if c.Body != "" {
		body = fmt.Sprintf(", data=r\"\"\"%s\"\"\".encode()", c.Body)
		header = fmt.Sprintf("\"Content-Type\": %q, ", c.Media)
	}
	return fmt.Sprintf(`import os, urllib.request

request = urllib.request.Request(%q, method=%q%s,
    headers={%s"Authorization": "Bearer " + os.environ["LUCIUS_TOKEN"]})
with urllib.request.urlopen(request) as response:
    print(response.read().decode())`, c.URL, c.Method, body, header)
}

func (c *sampleCall) typescript() string {
	body, header := "", ""
	if c.Body != "" {
		body = "\n  body: JSON.stringify(" + strings.ReplaceAll(c.Body, "\n", "\n  ") + "),"
		header = fmt.Sprintf("\"Content-Type\": %q, ", c.Media)
	}
	return fmt.Sprintf("const response = await fetch(%q, {\n  method: %q,\n"+
		"  headers: { %sAuthorization: `Bearer ${process.env.LUCIUS_TOKEN}` },%s\n});\n"+
		"console.log(response.status, await response.text());", c.URL, c.Method, header, body)
}
