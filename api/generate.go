package api

//go:generate go tool -modfile=../tools/oapi-codegen/go.mod oapi-codegen -config oapi-codegen.yaml openapi.yaml
//go:generate go run ../internal/apipage -document openapi.yaml -o docs.gen.html
