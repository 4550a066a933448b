"""A receiver of OTLP, made of the protocol's published packages: receiver.py MODE HTTP_PORT GRPC_PORT.

Prints a line of JSON for each request, then answers it by the mode: ok, slow, unavailable, refuse, partial or redirect.
"""
import gzip
import json
import sys
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs, logs_service_pb2_grpc as logs_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace, trace_service_pb2_grpc as trace_grpc

MODE, HTTP, GRPC = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STATUS = {"unavailable": 503, "refuse": 400, "redirect": 307}


def value(any_value):
    kind = any_value.WhichOneof("value")
    found = getattr(any_value, kind)
    return str(found) if kind.endswith("list_value") or kind == "array_value" else found


def attributes(of):
    return {one.key: value(one.value) for one in of.attributes}


def take(request, headers):
    """Prints what came, and makes the answer."""
    if isinstance(request, trace.ExportTraceServiceRequest):
        resources, answer = request.resource_spans, trace.ExportTraceServiceResponse()
        items = [one for resource in resources for scope in resource.scope_spans for one in scope.spans]
        answer.partial_success.rejected_spans = 1 if MODE == "partial" else 0
    else:
        resources, answer = request.resource_logs, logs.ExportLogsServiceResponse()
        items = [one for resource in resources for scope in resource.scope_logs for one in scope.log_records]
        answer.partial_success.rejected_log_records = 1 if MODE == "partial" else 0
    printed = [{
        "trace": one.trace_id.hex(), "span": one.span_id.hex(), "attributes": attributes(one),
        "name": one.name if hasattr(one, "name") else one.event_name,
        "body": one.body.string_value if hasattr(one, "body") else "",
    } for one in items]
    resource = attributes(resources[0].resource)
    print(json.dumps({"mode": MODE, "items": printed, "resource": resource, "headers": headers}), flush=True)
    if MODE == "slow":
        time.sleep(3600)
    return answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        kinds = {"/v1/traces": trace.ExportTraceServiceRequest, "/v1/logs": logs.ExportLogsServiceRequest}
        answer = take(kinds[self.path].FromString(body), dict(self.headers)).SerializeToString()
        self.send_response(STATUS.get(MODE, 200))
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        if MODE == "redirect":
            self.send_header("location", f"http://127.0.0.1:{HTTP}/v1/traces")
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Service(trace_grpc.TraceServiceServicer, logs_grpc.LogsServiceServicer):
    def Export(self, request, context):
        answer = take(request, dict(context.invocation_metadata()))
        if MODE == "unavailable":
            context.abort(grpc.StatusCode.UNAVAILABLE, "no room")
        if MODE in ("refuse", "redirect"):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not this")
        return answer


server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
trace_grpc.add_TraceServiceServicer_to_server(Service(), server)
logs_grpc.add_LogsServiceServicer_to_server(Service(), server)
server.add_insecure_port(f"127.0.0.1:{GRPC}")
server.start()
ThreadingHTTPServer(("127.0.0.1", HTTP), Handler).serve_forever()
