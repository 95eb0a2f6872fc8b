module ichor.maesh.dev/tests/conformance

go 1.26.5

replace github.com/cosi-project/runtime => github.com/cosi-project/runtime v1.16.2

replace github.com/jsimonetti/rtnetlink/v2 => github.com/jsimonetti/rtnetlink/v2 v2.2.0

require github.com/siderolabs/talos/pkg/machinery v1.14.1 // indirect
